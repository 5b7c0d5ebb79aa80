package server

// Version is the product's version, shown to clients and operators.
const Version = "0.1.0"
