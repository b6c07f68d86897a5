"""Files and trees of this machine, where hostile code may have planted links."""
