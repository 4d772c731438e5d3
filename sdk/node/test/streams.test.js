'use strict';
// Streamed bodies and topics in a domain, each function a process; this process is `caller`.

const assert = require('node:assert/strict');
const { after, before, describe, test } = require('node:test');

const { Domain, domainSkipReason } = require('./fixtures');

describe('streams', { skip: domainSkipReason() }, () => {
  let domain;
  let nearpath;
  const overShm = (path, options) => ({ path, shmOnly: true, deadline: 30_000, ...options });
  const repeat = function* repeat(count, piece) {
    for (let k = 0; k < count; k += 1) yield piece;
  };
  const length = async (stream) => {
    let count = 0;
    for await (const part of stream) count += part.length;
    return count;
  };

  before(async () => {
    domain = await new Domain().startNode('caller>parts', 'caller>whole', 'caller>listens-orders');
    process.env.NEARPATH_DISPATCH = domain.socketPath('caller');
    nearpath = require('..');
    await domain.startFunction('parts', { STREAM: '1' });
    await domain.startFunction('whole');
    await domain.startFunction('listens-orders');
    for (const name of ['parts', 'whole', 'listens-orders']) {
      for (let tries = 0; ; tries += 1) {
        try {
          await nearpath.call(name, '', overShm('/stream-counts'));
          break;
        } catch (error) {
          if (error.kind !== 'unsent' || tries > 6000) throw error;
          await new Promise((resolve) => setTimeout(resolve, 5)); // there is no event for the start of another process
        }
      }
    }
  });
  after(async () => assert.deepEqual(await domain.stop(), [0, 0, 0]));

  test('a response part arrives before the next request part is sent', async () => {
    let onPart;
    const turns = async function* turns() {
      for (const word of ['one', 'two', 'three']) {
        const received = new Promise((resolve) => (onPart = resolve));
        yield word;
        await received;
      }
    };
    const response = await nearpath.call('parts', turns(), overShm('/upper', { stream: true }));
    const parts = [];
    for await (const part of response.stream) {
      parts.push(String(part));
      onPart();
    }
    assert.deepEqual([parts, response.status, response.path], [['ONE', 'TWO', 'THREE'], 200, 'shm']);
  });

  test('a body larger than both windows streams through', async () => {
    const response = await nearpath.call('parts', repeat(100, Buffer.alloc(100_000, 'a')), overShm('/upper', { stream: true }));
    assert.equal(await length(response.stream), 10_000_000);
  });

  test('a handler gets a body as a stream or whole', async () => {
    for (const name of ['parts', 'whole']) {
      const counted = await nearpath.call(name, repeat(20, Buffer.alloc(100_000)), overShm('/count'));
      assert.equal(String(counted.body), '2000000', name);
      const whole = await nearpath.call(name, 'plain', overShm('/upper'));
      assert.equal(String(whole.body), 'PLAIN', name);
    }
  });

  test('a slow reader pauses the generator, and closing the response ends it', async () => {
    const streamCounts = async () => JSON.parse((await nearpath.call('whole', '', overShm('/stream-counts'))).body);
    const [before, ended] = await streamCounts();
    const response = await nearpath.call('whole', '', overShm('/events', { stream: true }));
    assert.deepEqual([response.status, response.headers['content-type']], [207, 'text/event-stream']);
    for await (const part of response.stream) {
      assert.equal(part.length, 60_000);
      for (let k = 0; k < 50; k += 1) assert.ok((await streamCounts())[0] - before <= 16, 'at most eight parts are unread, and few more are buffered');
      break;
    }
    while ((await streamCounts())[1] === ended); // the test has a deadline
  });

  test('an aborted body is an error, never an end', async () => {
    for (const name of ['parts', 'whole']) {
      const response = await nearpath.call(name, '', overShm('/broken', { stream: true }));
      const error = await length(response.stream).then(assert.fail, (error) => error);
      assert.deepEqual([error.kind, error.function, error.path], ['truncated', name, 'shm']);
    }
    const failing = async function* failing() {
      yield 'some';
      throw new RangeError('body failed');
    };
    await assert.rejects(nearpath.call('parts', failing(), overShm('/count')), RangeError);
  });

  test('an event reaches the subscribers of its topic', async () => {
    assert.deepEqual(await nearpath.publish('orders', 'new'), { sent: 1, missed: 0 });
    assert.deepEqual(await nearpath.publish('others', 'new'), { sent: 0, missed: 0 });
    await nearpath.notify('listens-orders', 'plain', { shmOnly: true });
    const expected = JSON.stringify([['orders', 'new'], [null, 'plain']]);
    while (String((await nearpath.call('listens-orders', '', overShm('/topics'))).body) !== expected); // the test has a deadline
    const error = await nearpath.publish('orders/#').then(assert.fail, (error) => error);
    assert.equal(error.kind, 'name');
  });
});
