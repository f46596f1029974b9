"""⑩ The file of a compiled network, and its interface: manifest, machine code, constants."""
