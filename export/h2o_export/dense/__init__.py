"""The dense graphs: torch modules, traced on the meta device, bound to a layer's weights."""
