// Package apart has things done by other goroutines.
package apart

// Goroutines do one thing after the other. A new goroutine would grow its stack several times for each.
type Goroutines chan func()

// New returns so many.
func New(count int) Goroutines {
	all := make(Goroutines)
	for range count {
		go func() {
			for do := range all {
				do()
			}
		}()
	}
	return all
}

// Do has something done by one that has nothing to do, else by a new one.
func (g Goroutines) Do(do func()) {
	select {
	case g <- do:
	default:
		go do()
	}
}
