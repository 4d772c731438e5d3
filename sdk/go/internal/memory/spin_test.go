package memory_test

import (
	"testing"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

func TestSpinRunsOnlyAcrossProcessors(t *testing.T) {
	spin := memory.NewSpin(memory.SpinBudget)
	for _, cores := range [][2]uint32{{1, 1}, {0, 1}, {1, 0}} {
		if budget := spin.Budget(cores[0], cores[1]); budget != 0 {
			t.Errorf("%v: %v", cores, budget)
		}
	}
	if budget := spin.Budget(1, 2); budget != memory.SpinBudget {
		t.Error(budget)
	}
}

func TestSpinStopsAfterFailuresAndProbesAgain(t *testing.T) {
	spin := memory.NewSpin(memory.SpinBudget)
	var spent time.Duration
	for budget := spin.Budget(1, 2); budget > 0; budget = spin.Budget(1, 2) {
		spent += budget
		spin.Spun(false)
	}
	if spent >= 2*memory.SpinBudget {
		t.Errorf("giving up took %v", spent)
	}
	probes := 0
	for range 640 {
		if spin.Budget(1, 2) > 0 {
			probes++
			spin.Spun(false)
		}
	}
	if probes != 10 {
		t.Errorf("%d probes", probes)
	}
	spin.Spun(true)
	if budget := spin.Budget(1, 2); budget != memory.SpinBudget {
		t.Error(budget)
	}
}
