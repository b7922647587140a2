"""The HTTP side: the live page and the HTTP/JSON API, in a process of its own that asks routers and nodes over gRPC.

`gateway.py` holds the connections to the fleet and decides who may do what, `server.py` listens, `app.py` puts routes
together. `api/` is the API under /v1, `pages/` the page. Nothing here routes, or reads a topic.
"""
