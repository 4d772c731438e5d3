package memory

import "time"

// SpinBudget is the maximum time of a spin.
const SpinBudget = 20 * time.Microsecond

const (
	probeEvery = 64
	// probeLonger is the factor of a probe's time: if both sides sleep, an answer takes two wake-ups, which is longer than the budget.
	probeLonger = 4
)

// Spin decides for how long to poll before sleeping. Polling pays only while the peer runs on another processor and answers fast: each
// unsuccessful spin halves the budget, a successful one restores it. With a budget of 0 one wait in 64 polls again, for longer.
type Spin struct {
	full, now time.Duration
	waits     int
}

// NewSpin makes a Spin with this maximum.
func NewSpin(budget time.Duration) Spin { return Spin{full: budget, now: budget} }

// Budget is the time to spin now. own and peer are processors as in wakeup cells: plus one, 0 if unknown.
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

// Spun records the result of a spin.
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
