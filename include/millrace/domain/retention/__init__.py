"""How long and how much topics keep: bounds, forecasts, and whose unread records are in danger."""
