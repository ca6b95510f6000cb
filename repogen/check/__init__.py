"""Find in a model repository what its server would refuse, or accept and then do wrong."""
