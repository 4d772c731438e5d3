package endpoint_test

import (
	"slices"
	"strings"
	"testing"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/fakenode"
	"nearpath.io/nearpath/internal/memory"
)

func TestHelloListsTheCapabilitiesOfTheEndpoint(t *testing.T) {
	d, _, _ := startPair(t, fakenode.Config{}, echo)
	d.Await(func(v *fakenode.View) bool {
		hello := v.Alive("echo.fn")[0].Hello
		if !slices.Equal(hello.Delivery, []string{"ring"}) || !hello.Serves || hello.Wakeup != "eventfd" || hello.Version != 1 {
			t.Errorf("%+v", hello)
		}
		return true
	})
}

func TestAliasesReceiveCallsAndSubscribersEvents(t *testing.T) {
	got := make(chan string, 9)
	note := func(name string) func(*endpoint.IncomingCall) {
		return func(in *endpoint.IncomingCall) {
			var topic string
			_ = memory.EachField(in.HeadBytes(), func(name, value []byte) {
				if string(name) == ":name" {
					topic = string(value)
				}
			})
			got <- strings.Join([]string{name, topic, string(in.BodyBytes(false))}, " ")
			_ = in.Respond(&endpoint.Reply{Status: 200})
		}
	}
	edge := func(callee string) [2]string { return [2]string{"shop.fn", callee + ".fn"} }
	toGateway := [2]string{"shop.fn", ""} // which has no function, and sends events to other nodes
	d := start(t, fakenode.Config{
		Edges: [][2]string{edge("mail"), edge("audit"), edge("rates"), toGateway},
		Terms: map[[2]string]endpoint.Peer{
			edge("mail"):  {Topics: []string{"order/+"}, EventsOnly: true},
			edge("audit"): {Topics: []string{"#", "order/placed"}},
			edge("rates"): {Aliases: []string{"currency.fn", "money.fn"}},
			toGateway:     {Topics: []string{"stock/+"}, EventsOnly: true},
		},
	})
	d.join("", note("gateway"))
	d.join("mail.fn", note("mail"))
	d.join("mail.fn", note("mail"))
	d.join("audit.fn", note("audit"))
	d.join("rates.fn", note("rates"))
	caller := d.join("shop.fn", nil)
	awaitDone(t, "all edges", func() { d.Await(func(v *fakenode.View) bool { return v.Channels() == 5 }) })
	for _, name := range []string{"audit", "money", "currency.fn", "rates"} {
		d.awaitRoute(caller, name)
	}
	awaitDone(t, "events to both", func() {
		for {
			sent, err := caller.Publish(testContext(t), "order/placed", &endpoint.CallRequest{BodyBytes: []byte("7")})
			if err != nil || sent.Missed != 0 {
				t.Errorf("%+v %v", sent, err)
			}
			events := []string{}
			for range sent.Sent {
				events = append(events, <-got)
			}
			slices.Sort(events)
			if slices.Equal(events, []string{"audit order/placed 7", "mail order/placed 7"}) {
				return // the node may not have announced mail yet
			}
		}
	})
	if sent, err := caller.Publish(testContext(t), "weather", &endpoint.CallRequest{}); err != nil || sent.Sent != 1 || <-got != "audit weather " {
		t.Errorf("%+v %v", sent, err)
	}
	awaitDone(t, "the gateway takes events", func() {
		for events := []string{}; !slices.Contains(events, "gateway stock/low 3"); {
			sent, err := caller.Publish(testContext(t), "stock/low", &endpoint.CallRequest{BodyBytes: []byte("3")})
			if err != nil || sent.Missed != 0 {
				t.Errorf("%+v %v", sent, err)
			}
			for range sent.Sent {
				events = append(events, <-got)
			}
		}
	})
	if caller.HasRoute("mail") || caller.HasRoute("") {
		t.Error("an edge for events alone takes calls")
	}
	if err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "money"}, &endpoint.CallResponse{}); err != nil || <-got != "rates  " {
		t.Error(err)
	}
	d.awaitFreeSlots()
}

func TestACallOnAnEventsOnlyEdgeBreaksTheChannel(t *testing.T) {
	edge := [2]string{"misbehaving.fn", "echo.fn"}
	d := start(t, fakenode.Config{Edges: [][2]string{edge}, Terms: map[[2]string]endpoint.Peer{edge: {EventsOnly: true}}})
	d.join("echo.fn", echo)
	channel, wakeupCell, welcome, pool := joinMisbehaving(t, d)
	member := memory.NewLeaseHolder(pool, welcome.Endpoint, welcome.Pool)
	end := channel.End(memory.Caller, member, 1)
	for _, kind := range []memory.MessageKind{memory.KindEvent, memory.KindCall} {
		lease, err := member.Claim(memory.EnvelopeSize)
		if err != nil {
			t.Fatal(err)
		}
		envelope := memory.Envelope{Kind: kind, Call: uint64(kind)}
		envelope.Put(lease.Bytes())
		if err := end.Send(&lease, memory.EnvelopeSize, true); err != nil {
			t.Fatal(err)
		}
		if kind == memory.KindEvent {
			wakeupCell.Wake()
			d.awaitFreeSlots()
			if channel.State() != memory.Open {
				t.Fatal("an event broke the channel")
			}
		}
	}
	awaitDone(t, "the break", func() {
		for channel.State() != memory.Broken {
			wakeupCell.Wake()
		}
	})
}

// The cases are the examples of MQTT 5.0 section 4.7, and those of the Rust implementation.
func TestTopicFiltersSelectAsInMQTT(t *testing.T) {
	for _, c := range []struct {
		filter, topic string
		selected      bool
	}{
		{"sport/tennis/player1/#", "sport/tennis/player1", true},
		{"sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true},
		{"sport/#", "sport", true},
		{"sport/tennis/+", "sport/tennis/player1", true},
		{"sport/tennis/+", "sport/tennis/player1/ranking", false},
		{"sport/+", "sport", false},
		{"sport/+", "sport/", true},
		{"+/+", "/finance", true},
		{"/+", "/finance", true},
		{"+", "/finance", false},
		{"#", "$SYS/uptime", false},
		{"+/uptime", "$SYS/uptime", false},
		{"$SYS/#", "$SYS/uptime", true},
		{"a", "A", false},
		{"a/b", "a", false},
		{"a", "a/b", false},
	} {
		if endpoint.Selects(c.filter, c.topic) != c.selected {
			t.Errorf("%q, %q: not %v", c.filter, c.topic, c.selected)
		}
	}
	if endpoint.IsTopic("a/+") || endpoint.IsTopic("") || !endpoint.IsTopic("/") {
		t.Error("IsTopic")
	}
}
