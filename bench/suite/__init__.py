"""The measurements that the claims rest on."""
