"""The request schemas in pydantic, from which the OpenAPI description follows."""
