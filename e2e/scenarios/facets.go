package main

// small is a facet with small documents, so that reading them costs little.
const small = "small"

var onlySmall = map[string]string{small: "basic"}
