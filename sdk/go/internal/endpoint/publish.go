package endpoint

import (
	"context"
	"slices"

	"nearpath.io/nearpath/internal/memory"
)

// PublishReport counts the functions that a published event reached and missed.
type PublishReport struct {
	// Sent counts the subscribed functions with an instance to which the event was sent; all on other nodes count as one.
	Sent int
	// Missed counts the subscribed functions whose instance could not take the event.
	Missed int
}

// Publish sends an event to one instance of each function that subscribes to the topic, and once to the gateway, which has no
// function, for those on other nodes. HeadBytes of request must not have a :name.
func (p *Endpoint) Publish(ctx context.Context, topic string, request *CallRequest) (published PublishReport, err error) {
	head, err := memory.AppendField(make([]byte, 0, len(request.HeadBytes)+len(topic)+16), ":name", topic)
	if err != nil {
		return published, err
	}
	event := *request
	event.HeadBytes = append(head, request.HeadBytes...)
	for _, ends := range *p.subscribers.Load() {
		newest := ends[len(ends)-1] // its filters apply to its function
		if !slices.ContainsFunc(newest.Topics, func(filter string) bool { return Selects(filter, topic) }) {
			continue
		}
		if leastLoaded(ends).notify(ctx, &event) == nil {
			published.Sent++
		} else {
			published.Missed++
		}
	}
	return published, ctx.Err()
}
