"""Who has which samples, and which of these are for training, validation and test."""
