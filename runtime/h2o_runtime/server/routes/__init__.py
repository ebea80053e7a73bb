"""The paths of the API, one file a group."""
