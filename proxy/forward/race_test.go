//go:build race

package forward

func init() { raceEnabled = true }
