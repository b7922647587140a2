"""The HTTP/JSON API, under /v1. Nothing here renders a page."""
