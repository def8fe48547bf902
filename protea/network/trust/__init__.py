"""Keys, certificates, and the bundles that carry them."""
