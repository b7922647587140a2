"""Watches: sends the changes of keys as they are applied. Nothing here answers a request that ends on its own."""
