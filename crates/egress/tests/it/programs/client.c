/* Clients of the test server, one way of using a socket each: `client WAY HOST PORT`. What they print does not depend on whose socket it is. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in to;
static int timeout_ms = 20000;

static void say(const char *what, long value)
{
	printf("%s %ld %s\n", what, value, value < 0 ? strerror(errno) : "");
	fflush(stdout);
}

static int new_socket(int flags)
{
	int s = socket(AF_INET, SOCK_STREAM | flags, 0);

	if (s < 0)
		exit(2);
	return s;
}

static int join(int s)
{
	return connect(s, (struct sockaddr *)&to, sizeof(to));
}

static void wait_for(int fd, short events)
{
	struct pollfd end = {fd, events, 0};

	if (poll(&end, 1, timeout_ms) != 1)
		exit(3);
}

/* Sends a line and prints the answer. */
static void ask(int s, const char *line)
{
	char answer[256];
	size_t got = 0;

	if (dprintf(s, "%s\n", line) < 0)
		return say("write", -1);
	while (got < sizeof(answer) - 1 && !memchr(answer, '\n', got)) {
		ssize_t more;

		wait_for(s, POLLIN);
		more = recv(s, answer + got, sizeof(answer) - 1 - got, 0);
		if (more <= 0)
			return say("recv", more);
		got += more;
	}
	answer[got] = 0;
	fputs(answer, stdout);
	fflush(stdout);
}

/* A connect that need not be done at once. */
static void join_later(int s)
{
	int error = 0;
	socklen_t length = sizeof(error);

	if (join(s) == 0)
		return;
	if (errno != EINPROGRESS)
		return say("connect", -1);
	wait_for(s, POLLOUT);
	getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length);
	say("so_error", error);
}

static void way_plain(void)
{
	for (int i = 0; i < 5; i++) {
		int s = new_socket(SOCK_CLOEXEC);
		char line[32];

		say("connect", join(s));
		snprintf(line, sizeof(line), "plain %d", i);
		ask(s, line);
		say("close", close(s));
	}
}

/* More connections at once than are kept warm. */
static void way_burst(void)
{
	int sockets[20];

	for (int i = 0; i < 20; i++) {
		sockets[i] = new_socket(SOCK_CLOEXEC);
		say("connect", join(sockets[i]));
	}
	for (int i = 0; i < 20; i++) {
		ask(sockets[i], "burst");
		say("close", close(sockets[i]));
	}
}

static void way_names(void)
{
	int s = new_socket(0), family = 0;
	struct sockaddr_in peer = {0}, own = {0};
	socklen_t a = sizeof(peer), b = sizeof(own), c = sizeof(family);

	say("connect", join(s));
	say("getpeername", getpeername(s, (struct sockaddr *)&peer, &a));
	say("same peer", peer.sin_addr.s_addr == to.sin_addr.s_addr && peer.sin_port == to.sin_port);
	say("getsockname", getsockname(s, (struct sockaddr *)&own, &b));
	say("own port", own.sin_port != 0);
	getsockopt(s, SOL_SOCKET, SO_DOMAIN, &family, &c);
	say("family", family);
	say("again", join(s));
	ask(s, "still there");
}

static void way_nonblock(void)
{
	int s = new_socket(SOCK_NONBLOCK);
	char one;

	join_later(s);
	say("nonblocking", !!(fcntl(s, F_GETFL) & O_NONBLOCK));
	say("recv", recv(s, &one, 1, 0));
	ask(s, "nonblock");
}

static void way_select(void)
{
	int s = new_socket(0);
	fd_set writable;
	struct timeval limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000};

	fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
	if (join(s) && errno != EINPROGRESS)
		say("connect", -1);
	FD_ZERO(&writable);
	FD_SET(s, &writable);
	say("select", select(s + 1, NULL, &writable, NULL, &limit));
	fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK);
	ask(s, "select");
}

static void way_epoll_before(void)
{
	int s = new_socket(SOCK_NONBLOCK), ep = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = 77}, got[2];
	char line[32];

	say("add", epoll_ctl(ep, EPOLL_CTL_ADD, s, &event));
	join_later(s);
	/* One registered before connect() has told of its hang-up first; what counts is what it tells now. */
	for (int tries = 0; tries < 100; tries++) {
		int n = epoll_wait(ep, got, 2, timeout_ms);

		if (n == 1 && got[0].data.fd == 77 && (got[0].events & (EPOLLOUT | EPOLLHUP)) == EPOLLOUT)
			break;
		if (n != 1)
			return say("epoll_wait", n);
	}
	dprintf(s, "epoll before\n");
	do
		got[0].events = 0;
	while (epoll_wait(ep, got, 2, timeout_ms) == 1 && !(got[0].events & EPOLLIN));
	say("told of it", got[0].data.fd == 77 && (got[0].events & EPOLLIN));
	say("recv", recv(s, line, 18, MSG_WAITALL));
	say("delete", epoll_ctl(ep, EPOLL_CTL_DEL, s, NULL));
	ask(s, "and again");
}

static void way_epoll_after(void)
{
	int s = new_socket(SOCK_NONBLOCK), ep = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLOUT, .data.fd = 78}, got[2];

	join_later(s);
	say("add", epoll_ctl(ep, EPOLL_CTL_ADD, s, &event));
	say("told", epoll_wait(ep, got, 2, timeout_ms));
	ask(s, "epoll after");
}

static void way_dup_before(void)
{
	int s = new_socket(0), twin = dup(s);

	say("connect", join(s));
	ask(twin, "by the twin");
	close(s);
	ask(twin, "after the first was closed");
}

static void way_dup2_after(void)
{
	int s = new_socket(SOCK_CLOEXEC);

	say("connect", join(s));
	say("dup2", dup2(s, 40));
	close(s);
	ask(40, "by another number");
	say("inherited", !(fcntl(40, F_GETFD) & FD_CLOEXEC));
}

static void way_fork_after(void)
{
	int s = new_socket(0), status = 0;

	say("connect", join(s));
	if (fork() == 0) {
		ask(s, "by the child");
		_exit(0);
	}
	wait(&status);
	say("status", status);
	ask(s, "by the parent");
	if (fork() == 0) {
		int own = new_socket(0);

		say("child's connect", join(own));
		ask(own, "the child's own");
		_exit(0);
	}
	wait(&status);
}

static void way_exec(void)
{
	int kept = new_socket(0), closed = new_socket(SOCK_CLOEXEC);
	char script[200];

	say("connect", join(kept));
	say("connect", join(closed));
	ask(closed, "before exec");
	snprintf(script, sizeof(script),
		 "echo over exec >&%d; read line <&%d; echo $line; (: >&%d) 2>/dev/null && echo leaked || echo closed",
		 kept, kept, closed);
	execl("/bin/bash", "bash", "-c", script, NULL);
	say("exec", -1);
}

static void way_halfclose(void)
{
	int s = new_socket(0);
	char rest[64];
	ssize_t n;

	say("connect", join(s));
	ask(s, "half");
	say("shutdown", shutdown(s, SHUT_WR));
	say("write", send(s, "x", 1, MSG_NOSIGNAL));
	while ((n = read(s, rest, sizeof(rest))) > 0)
		fwrite(rest, 1, n, stdout);
	say("end", n);
}

static void show(int s, const char *name, int level, int option, size_t size)
{
	unsigned char value[16] = {0};
	socklen_t length = size;

	printf("%s %d:", name, getsockopt(s, level, option, value, &length));
	for (size_t i = 0; i < length; i++)
		printf(" %02x", value[i]);
	printf("\n");
}

static void way_options(void)
{
	int s = new_socket(0), one = 1, idle = 33, gap = 4, count = 7, after = 9000, tos = 0x48, priority = 5, small = 30000;
	struct linger linger = {1, 2};
	struct timeval in = {3, 500000}, out = {4, 0};

	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(s, IPPROTO_TCP, TCP_KEEPINTVL, &gap, sizeof(gap));
	setsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(s, IPPROTO_TCP, TCP_USER_TIMEOUT, &after, sizeof(after));
	setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &in, sizeof(in));
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &out, sizeof(out));
	setsockopt(s, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
	setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	setsockopt(s, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(s, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	setsockopt(s, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
	say("connect", join(s));
	show(s, "nodelay", IPPROTO_TCP, TCP_NODELAY, 4);
	show(s, "keepalive", SOL_SOCKET, SO_KEEPALIVE, 4);
	show(s, "keepidle", IPPROTO_TCP, TCP_KEEPIDLE, 4);
	show(s, "keepintvl", IPPROTO_TCP, TCP_KEEPINTVL, 4);
	show(s, "keepcnt", IPPROTO_TCP, TCP_KEEPCNT, 4);
	show(s, "user timeout", IPPROTO_TCP, TCP_USER_TIMEOUT, 4);
	show(s, "linger", SOL_SOCKET, SO_LINGER, 8);
	show(s, "rcvtimeo", SOL_SOCKET, SO_RCVTIMEO, 16);
	show(s, "sndtimeo", SOL_SOCKET, SO_SNDTIMEO, 16);
	show(s, "oobinline", SOL_SOCKET, SO_OOBINLINE, 4);
	show(s, "rcvbuf", SOL_SOCKET, SO_RCVBUF, 4);
	show(s, "sndbuf", SOL_SOCKET, SO_SNDBUF, 4);
	show(s, "priority", SOL_SOCKET, SO_PRIORITY, 4);
	show(s, "tos", IPPROTO_IP, IP_TOS, 4);
	ask(s, "options");
}

static void way_untouched(void)
{
	int s = new_socket(0);

	say("connect", join(s));
	show(s, "nodelay", IPPROTO_TCP, TCP_NODELAY, 4);
	show(s, "keepalive", SOL_SOCKET, SO_KEEPALIVE, 4);
	show(s, "keepidle", IPPROTO_TCP, TCP_KEEPIDLE, 4);
	show(s, "linger", SOL_SOCKET, SO_LINGER, 8);
	show(s, "rcvtimeo", SOL_SOCKET, SO_RCVTIMEO, 16);
	show(s, "oobinline", SOL_SOCKET, SO_OOBINLINE, 4);
	show(s, "priority", SOL_SOCKET, SO_PRIORITY, 4);
	show(s, "tos", IPPROTO_IP, IP_TOS, 4);
	show(s, "error", SOL_SOCKET, SO_ERROR, 4);
	say("flags", fcntl(s, F_GETFL));
	say("descriptor flags", fcntl(s, F_GETFD));
}

static void way_odd_option(void)
{
	int s = new_socket(0);

	setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
	say("connect", join(s));
	show(s, "congestion", IPPROTO_TCP, TCP_CONGESTION, 16);
	ask(s, "odd option");
}

static void way_bound(void)
{
	int s = new_socket(0);
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000005)};
	socklen_t length = sizeof(own);

	say("bind", bind(s, (struct sockaddr *)&own, sizeof(own)));
	say("connect", join(s));
	getsockname(s, (struct sockaddr *)&own, &length);
	say("own address", ntohl(own.sin_addr.s_addr) & 0xff);
	ask(s, "bound");
}

static void way_async(void)
{
	int s = new_socket(0);

	signal(SIGIO, SIG_IGN);
	fcntl(s, F_SETOWN, getpid());
	fcntl(s, F_SETFL, O_ASYNC);
	say("connect", join(s));
	say("async", !!(fcntl(s, F_GETFL) & O_ASYNC));
	ask(s, "async");
}

static void way_mapped(void)
{
	int s = socket(AF_INET6, SOCK_STREAM, 0), family = 0;
	struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = to.sin_port}, peer = {0};
	socklen_t length = sizeof(peer), size = sizeof(family);
	char text[64] = "";

	mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
	memcpy(mapped.sin6_addr.s6_addr + 12, &to.sin_addr, 4);
	say("connect", connect(s, (struct sockaddr *)&mapped, sizeof(mapped)));
	say("getpeername", getpeername(s, (struct sockaddr *)&peer, &length));
	printf("%s\n", inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof(text)));
	getsockopt(s, SOL_SOCKET, SO_DOMAIN, &family, &size);
	say("family", family);
	ask(s, "mapped");
	close(s);
	s = socket(AF_INET6, SOCK_STREAM, 0);
	family = 1;
	setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &family, sizeof(family));
	say("v6 only", connect(s, (struct sockaddr *)&mapped, sizeof(mapped)));
	say("v4 address on v6", join(s));
	s = new_socket(0);
	say("v6 address on v4", connect(s, (struct sockaddr *)&mapped, sizeof(mapped)));
}

/* Calls that fail, and how. */
static void way_wrong(void)
{
	int s = new_socket(0), udp = socket(AF_INET, SOCK_DGRAM, 0), file = open("/dev/null", O_RDWR);
	struct sockaddr_in nobody = to;
	struct sockaddr_un none = {.sun_family = AF_UNIX, .sun_path = "/nowhere/at/all"};

	say("no descriptor", join(900));
	say("no socket", join(file));
	say("null", connect(s, NULL, sizeof(to)));
	say("wild", connect(s, (struct sockaddr *)8, sizeof(to)));
	say("short", connect(s, (struct sockaddr *)&to, 8));
	say("negative", connect(s, (struct sockaddr *)&to, -1));
	say("udp", join(udp));
	say("unix", connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&none, 16));
	nobody.sin_family = AF_UNSPEC;
	say("unspecified", connect(s, (struct sockaddr *)&nobody, sizeof(nobody)));
	nobody.sin_family = AF_INET;
	nobody.sin_port = htons(1);
	say("refused", connect(s, (struct sockaddr *)&nobody, sizeof(nobody)));
	say("then right", join(s));
	ask(s, "after all that");
	say("listening", listen(s, 1));
}

static void way_listener(void)
{
	int s = new_socket(0);
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};

	say("bind", bind(s, (struct sockaddr *)&own, sizeof(own)));
	say("listen", listen(s, 1));
	say("connect", join(s));
}

static void *threads_ask(void *name)
{
	char *text = malloc(1 << 16), *at = text;

	for (int i = 0; i < 50; i++) {
		int s = new_socket(SOCK_CLOEXEC);
		char line[64], answer[128];
		int sent = snprintf(line, sizeof(line), "%s %d\n", (char *)name, i), got;

		if (join(s) || write(s, line, sent) != sent) {
			at += sprintf(at, "failed: %s\n", strerror(errno));
			continue;
		}
		got = recv(s, answer, sent + 5, MSG_WAITALL);
		at += sprintf(at, "%.*s", got < 0 ? 0 : got, answer);
		close(s);
	}
	return text;
}

static void way_threads(void)
{
	pthread_t threads[4];
	static const char *names[4] = {"one", "two", "three", "four"};

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, threads_ask, (void *)names[i]);
	for (int i = 0; i < 4; i++) {
		void *text;

		pthread_join(threads[i], &text);
		fputs(text, stdout);
	}
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	(void)number;
	alarms++;
}

/* Signals all the time, as Go's runtime sends them: calls begin again. */
static void way_signals(void)
{
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 300; i++) {
		int s = new_socket(0), failed = 0;
		char line[32], answer[64];
		int sent = snprintf(line, sizeof(line), "signals %d\n", i), got = 0;

		if (join(s))
			failed = printf("connect: %s\n", strerror(errno));
		while (!failed && write(s, line, sent) < 0)
			failed = errno != EINTR && printf("write: %s\n", strerror(errno));
		while (!failed && got < sent + 5) {
			int more = recv(s, answer + got, sent + 5 - got, 0);

			if (more > 0)
				got += more;
			else
				failed = errno != EINTR && printf("recv %d: %s\n", more, strerror(errno));
		}
		if (!failed && (memcmp(answer, "echo ", 5) || memcmp(answer + 5, line, sent)))
			printf("another's answer: %.*s\n", got, answer);
		close(s);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	say("signals came", alarms > 0);
}

/* Has a socket of its own at every number up to 500. */
static void way_crowded(void)
{
	int last = 0;

	for (int i = 0; i < 400; i++)
		last = open("/dev/null", O_RDONLY);
	say("many", last > 400);
	way_plain();
}

/* Connects, says half a line, and waits to be killed. */
static void way_wait(void)
{
	int s = new_socket(0);

	say("connect", join(s));
	say("write", write(s, "half a li", 9));
	pause();
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int order(const void *a, const void *b)
{
	return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}

#define ROUNDS 400

static void median(const char *what, double *all)
{
	qsort(all, ROUNDS, sizeof(*all), order);
	printf("%s %.1f\n", what, all[ROUNDS / 2]);
}

/* Microseconds, medians: a connect that nobody cares for, and from socket() to the first octet of an answer. */
static void way_cost(void)
{
	static double elsewhere[ROUNDS], joined[ROUNDS], first[ROUNDS];
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
	socklen_t length = sizeof(own);
	int listener = new_socket(0);

	if (bind(listener, (struct sockaddr *)&own, sizeof(own)) || listen(listener, ROUNDS))
		return;
	getsockname(listener, (struct sockaddr *)&own, &length);
	for (int i = 0; i < ROUNDS; i++) {
		int s = new_socket(SOCK_CLOEXEC);
		char one;

		elsewhere[i] = now();
		if (connect(s, (struct sockaddr *)&own, sizeof(own)))
			return say("connect", -1);
		elsewhere[i] = now() - elsewhere[i];
		close(s);
		close(accept(listener, NULL, NULL));
		usleep(300);
		first[i] = now();
		s = new_socket(SOCK_CLOEXEC);
		if (join(s))
			return say("connect", -1);
		joined[i] = now() - first[i];
		if (write(s, "a line of some length\n", 22) != 22 || recv(s, &one, 1, 0) != 1)
			return say("answer", -1);
		first[i] = now() - first[i];
		close(s);
		usleep(300);
	}
	median("elsewhere", elsewhere);
	median("connected", joined);
	median("first", first);
	printf("longest %.1f\n", first[ROUNDS - 1]);
}

/* Sets an option that a connection has from its beginning, and talks. */
static void odd(int level, int name, const void *value, socklen_t length)
{
	int s = new_socket(0);

	say("setsockopt", setsockopt(s, level, name, value, length));
	say("connect", join(s));
	ask(s, "odd");
	say("close", close(s));
}

static const int one = 1;

static void way_mark(void)
{
	odd(SOL_SOCKET, SO_MARK, &one, sizeof(one));
}

static void way_transparent(void)
{
	odd(IPPROTO_IP, IP_TRANSPARENT, &one, sizeof(one));
}

static void way_device(void)
{
	odd(SOL_SOCKET, SO_BINDTODEVICE, "lo", 3);
}

static void way_reuseport(void)
{
	odd(SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
}

static void way_fastopen(void)
{
	odd(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof(one));
}

/* No kernel layers TLS on a socket that is not connected. */
static void way_layered(void)
{
	odd(IPPROTO_TCP, TCP_ULP, "tls", 3);
}

/* Data before there is a connection: nobody calls connect(). */
static void way_fast_send(void)
{
	int s = new_socket(0);

	say("sendto", sendto(s, "fa", 2, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof(to)));
	ask(s, "st");
	say("close", close(s));
}

static void way_multipath(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 262 /* IPPROTO_MPTCP */);

	if (s < 0)
		return say("socket", -1);
	say("connect", join(s));
	ask(s, "many ways");
	say("close", close(s));
}

static void way_twice(void)
{
	int s = new_socket(0);

	say("connect", join(s));
	say("again", join(s));
	ask(s, "twice");
	say("close", close(s));
}

/* Disconnects and connects once more. */
static void way_disconnect(void)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	int s = new_socket(0);

	say("connect", join(s));
	ask(s, "first");
	say("disconnect", connect(s, &none, sizeof(none)));
	say("connect", join(s));
	ask(s, "second");
	say("close", close(s));
}

/* Connects for ever. */
static void way_forever(void)
{
	for (long i = 0;; i++) {
		int s = new_socket(0);

		if (join(s))
			return say("connect", -1);
		if (i % 1000 == 0)
			say("connected", i);
		setsockopt(s, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)); /* ports are few */
		close(s);
	}
}

#define WAY(name) {#name, way_##name}
static const struct {
	const char *name;
	void (*go)(void);
} ways[] = {
	WAY(plain), WAY(names), WAY(nonblock), WAY(select), WAY(epoll_before), WAY(epoll_after), WAY(dup_before),
	WAY(dup2_after), WAY(fork_after), WAY(exec), WAY(halfclose), WAY(options), WAY(untouched), WAY(odd_option), WAY(bound),
	WAY(async), WAY(mapped), WAY(wrong), WAY(listener), WAY(threads), WAY(signals), WAY(crowded), WAY(wait), WAY(cost), WAY(forever),
	WAY(mark), WAY(transparent), WAY(device), WAY(reuseport), WAY(fastopen), WAY(layered), WAY(fast_send), WAY(multipath), WAY(twice),
	WAY(disconnect), WAY(burst),
};

int main(int count, char **arguments)
{
	if (count != 4)
		return 64;
	if (getenv("TIMEOUT_MS"))
		timeout_ms = atoi(getenv("TIMEOUT_MS"));
	to.sin_family = AF_INET;
	to.sin_port = htons(atoi(arguments[3]));
	inet_pton(AF_INET, arguments[2], &to.sin_addr);
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		if (!strcmp(ways[i].name, arguments[1])) {
			ways[i].go();
			return 0;
		}
	return 64;
}
