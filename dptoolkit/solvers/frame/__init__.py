"""What every private fit goes through: settings, plan, the fit itself, many of them, outlook, rules."""
