"""Words shared by all rooms: errors, units, memory, sealed files."""
