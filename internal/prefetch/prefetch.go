// Package prefetch asks the processor to bring memory into its cache, for which Go has no words.
package prefetch
