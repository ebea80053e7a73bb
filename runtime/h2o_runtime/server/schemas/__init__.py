"""What requests may hold, by pydantic: the OpenAPI description follows from it."""
