"""The processes of one gateway: master, workers, monitor, and how they talk."""
