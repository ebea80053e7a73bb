"""Configuration: prefill settings, quality presets, how a bundle is loaded, and which parts are
compatible.
"""
