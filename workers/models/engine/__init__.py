"""The in-process engine: vision towers and language models behind two small protocols.

Importing this package, `protocol`, `facts`, `sampling` or `stopping` loads no torch; the modules
that compute do. Knows no bus, no envelope and no HTTP.
"""
