"""A reliability campaign: runs are killed, disks fill up, files rot, inputs lie; the promises must hold."""
