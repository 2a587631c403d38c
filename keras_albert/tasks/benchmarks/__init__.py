"""Files and published hyper-parameters of GLUE and RACE."""
