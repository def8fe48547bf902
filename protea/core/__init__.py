"""What the author of a method touches.  Imports nothing of Protea but itself."""
