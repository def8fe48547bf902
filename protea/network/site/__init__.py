"""A site's side of a federation over a network: its data and its model stay here."""
