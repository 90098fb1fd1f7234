"""Legal attention that looks nothing like the equations: no kernel here may be accused of anything, in any dtype."""
