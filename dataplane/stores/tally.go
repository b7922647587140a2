package stores

import "sync"

// tally is how many keys a store has. It may be unknown; then it is nobody's, or a walk finds it while writes go on.
type tally struct {
	mutex   sync.Mutex
	on      bool // every write says by how much it changes the number
	known   bool
	count   int64 // once it is known
	changed int64 // since the walk began
}

// isOn says whether writes are to say by how much they change the number.
func (t *tally) isOn() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.on
}

// follow has writes say by how much they change the number, which a walk begins to find.
func (t *tally) follow() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.on, t.known, t.changed = true, false, 0
}

// begin takes the number: what was stored, or what the walk has found.
func (t *tally) begin(count int64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.on, t.known, t.count = true, true, count+t.changed
}

// add changes the number.
func (t *tally) add(change int64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.count += change
	t.changed += change
}

// after returns what the number is after a change; nil if it is not known.
func (t *tally) after(change int64) *int64 {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if !t.known {
		return nil
	}
	count := t.count + change
	return &count
}
