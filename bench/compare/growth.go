package main

import "context"

func growth(ctx context.Context, s settings) error { return nil }
