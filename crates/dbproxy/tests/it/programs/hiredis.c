/* hiredis, as C programs use it: one command at a time, several at once, binary values, a transaction, a value that is missing. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static redisReply *reply(void *r)
{
	if (!r) {
		puts("no reply");
		exit(1);
	}
	return r;
}

static void show(redisReply *r)
{
	switch (r->type) {
	case REDIS_REPLY_INTEGER:
		printf("%lld\n", r->integer);
		break;
	case REDIS_REPLY_NIL:
		puts("nil");
		break;
	case REDIS_REPLY_ARRAY:
		printf("%zu:\n", r->elements);
		for (size_t i = 0; i < r->elements; i++)
			show(r->element[i]);
		return;
	default:
		printf("%.*s\n", r->len > 40 ? 40 : (int)r->len, r->str);
	}
}

static void ask(redisContext *c, const char *command)
{
	redisReply *r = reply(redisCommand(c, command));

	show(r);
	freeReplyObject(r);
}

int main(int count, char **arguments)
{
	redisContext *c = redisConnect(arguments[1], count > 2 ? atoi(arguments[2]) : 0);
	static char large[100000];
	redisReply *r;
	void *each;

	if (!c || c->err)
		return 1;
	ask(c, "SELECT 3");
	ask(c, "FLUSHDB");
	ask(c, "SET a one");
	ask(c, "GET a");
	ask(c, "GET missing");
	memset(large, 'x', sizeof(large));
	large[5] = 0;
	freeReplyObject(reply(redisCommand(c, "SET b %b", large, sizeof(large))));
	r = reply(redisCommand(c, "GET b"));
	printf("%d\n", r->len == sizeof(large) && !memcmp(r->str, large, sizeof(large)));
	freeReplyObject(r);
	for (int i = 0; i < 1000; i++)
		redisAppendCommand(c, "INCR c");
	for (int i = 0; i < 1000; i++) {
		if (redisGetReply(c, &each) || reply(each)->integer != i + 1)
			return 1;
		freeReplyObject(each);
	}
	ask(c, "MULTI");
	ask(c, "INCR c");
	ask(c, "EXEC");
	ask(c, "NOSUCHCOMMAND");
	redisFree(c);
	return 0;
}
