//! The names of labels, annotations and variables.

/// Annotation: the chain that the function belongs to.
pub const CHAIN: &str = "nearpath.io/chain";
/// Annotation: functions that this one may call, comma separated: the chain's edges that start
/// here. `ALIAS=FUNCTION` lets it call the function by another name. `FUNCTION balance=connection` sets an
/// [`EdgeBalance`](super::EdgeBalance).
pub const CALLS: &str = "nearpath.io/calls";
/// Annotation: delivery of descriptors between the functions of the chain: `ring`, `sockmap` or `poll`.
pub const DELIVERY: &str = "nearpath.io/delivery";
/// Annotation: write access to the chain's memory: `shared` or `strict`.
pub const ISOLATION: &str = "nearpath.io/isolation";
/// Annotation: processors on which the chain's functions run, see
/// [`ChainPlacement`](super::ChainPlacement).
pub const PLACEMENT: &str = "nearpath.io/placement";
/// Annotation: pages of the chain's shared memory, see [`ChainPages`](super::ChainPages). Every
/// function of the chain has to ask for huge ones.
pub const PAGES: &str = "nearpath.io/pages";
/// Annotation: transport of calls outside shared memory, see
/// [`CallTransport`](super::CallTransport).
pub const TRANSPORT: &str = "nearpath.io/transport";
/// Annotation: delivery of bytes between the gateway and the function's own server on the same
/// machine: `tcp` or `sockmap`, see [`LoopbackDelivery`](super::LoopbackDelivery).
pub const LOOPBACK: &str = "nearpath.io/loopback";
/// Annotation: which calls may go in a connection's first flight: `idempotent`, `always` or
/// `never`.
pub const ZERO_RTT: &str = "nearpath.io/zero-rtt";
/// Annotation: nodes on which the function runs, comma separated; without it, every node. A node that
/// knows no others ignores it.
pub const NODES: &str = "nearpath.io/nodes";
/// Annotation: topics (or filters of topics) whose events this function sends within its chain,
/// comma separated.
pub const PUBLISHES: &str = "nearpath.io/publishes";
/// Annotation: filters of the topics whose events this function wants from others of its chain,
/// comma separated.
pub const SUBSCRIBES: &str = "nearpath.io/subscribes";
/// Annotation: destinations outside that this function may reach, comma separated: `HOST:PORT` and
/// settings, see [`EgressSpec`](crate::EgressSpec).
pub const EGRESS: &str = "nearpath.io/egress";
/// Annotation or environment variable: requests that one instance serves at a time; 0 means no
/// limit.
pub const MAX_INFLIGHT: &str = "nearpath.io/max-inflight";
/// Annotation: requests that may wait when every instance is busy or none is ready.
pub const QUEUE: &str = "nearpath.io/queue";
/// Annotation: time limit of the wait for a free instance.
pub const QUEUE_TIMEOUT: &str = "nearpath.io/queue-timeout";
/// Annotation: time limit of the wait for the first instance of a sleeping function.
pub const COLD_TIMEOUT: &str = "nearpath.io/cold-timeout";
/// Annotation: time for which instances of a sleeping function are kept frozen; 0: not at all.
pub const FROZEN: &str = "nearpath.io/frozen";
/// Annotation: time limit from the request's end to the response's first byte.
pub const FIRST_BYTE_TIMEOUT: &str = "nearpath.io/first-byte-timeout";
/// Annotation: time limit of silence inside a response or an upgraded connection.
pub const IDLE_TIMEOUT: &str = "nearpath.io/idle-timeout";
/// Annotation: time limit of the whole request, from its first byte to the response's last one.
pub const TOTAL_TIMEOUT: &str = "nearpath.io/total-timeout";
/// Annotation: largest request body, as a memory quantity.
pub const MAX_BODY: &str = "nearpath.io/max-body";
/// Annotation: MQTT topics whose messages call the function, comma separated, with the wildcards
/// `+` and `#`. The name is the one that OpenFaaS's connectors read.
pub const TOPIC: &str = "topic";
/// Label: replicas to start with and to wake to.
pub const SCALE_MIN: &str = "com.openfaas.scale.min";
/// Label: maximum number of replicas.
pub const SCALE_MAX: &str = "com.openfaas.scale.max";
/// Label: whether a function without traffic is scaled to zero, `true` or `false`.
pub const SCALE_ZERO: &str = "com.openfaas.scale.zero";
/// Label: time without traffic after which a function is scaled to zero.
pub const SCALE_ZERO_DURATION: &str = "com.openfaas.scale.zero-duration";
/// Label: load by which the function is scaled, see [`ScaleMetric`](super::ScaleMetric).
pub const SCALE_TYPE: &str = "com.openfaas.scale.type";
/// Label: load per replica, in the unit of the type.
pub const SCALE_TARGET: &str = "com.openfaas.scale.target";
/// Label: part of the target to which replicas are loaded.
pub const SCALE_TARGET_PROPORTION: &str = "com.openfaas.scale.target-proportion";
/// Label: time for which the largest number of replicas that was wanted is kept.
pub const SCALE_DOWN_WINDOW: &str = "com.openfaas.scale.down.window";
