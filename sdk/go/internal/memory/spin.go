package memory

import "time"

// SpinBudget is the longest spin.
const SpinBudget = 20 * time.Microsecond

const (
	probeEvery = 64
	// probeLonger: two sides that both sleep take two wake-ups for an answer, longer than the budget. A probe looks long enough to see it.
	probeLonger = 4
)

// Spin decides when to look again for a while before sleeping. That pays only while the peer runs on another processor and
// answers come fast: each fruitless spin halves the budget, a fruitful one restores it, and when it is spent one wait in 64 tries again, longer.
type Spin struct {
	full, now time.Duration
	waits     int
}

// NewSpin never spins longer than budget.
func NewSpin(budget time.Duration) Spin { return Spin{full: budget, now: budget} }

// Budget is how long to spin now. own and peer are processors as desks name them: plus one, 0 when unknown.
func (s *Spin) Budget(own, peer uint32) time.Duration {
	if own == 0 || peer == 0 || own == peer {
		return 0
	}
	if s.now > 0 {
		return s.now
	}
	if s.waits = (s.waits + 1) % probeEvery; s.waits == 0 {
		return probeLonger * s.full
	}
	return 0
}

// Spun says what came of a spin.
func (s *Spin) Spun(fruitful bool) {
	switch half := s.now / 2; {
	case fruitful:
		s.now = s.full
	case half >= s.full/16:
		s.now = half
	default:
		s.now = 0
	}
}
