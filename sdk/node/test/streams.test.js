'use strict';
// Bodies bit by bit, and topics: in a domain, each function a process; this one is `caller`.

const assert = require('node:assert/strict');
const { after, before, describe, test } = require('node:test');

const { Domain, missing } = require('./surroundings');

describe('streams', { skip: missing() }, () => {
  let domain;
  let nearpath;
  const near = (path, more) => ({ path, nearOnly: true, deadline: 30_000, ...more });
  const repeat = function* repeat(count, piece) {
    for (let k = 0; k < count; k += 1) yield piece;
  };
  const length = async (stream) => {
    let count = 0;
    for await (const part of stream) count += part.length;
    return count;
  };

  before(async () => {
    domain = await new Domain().begin('caller>parts', 'caller>whole', 'caller>listens-orders');
    process.env.NEARPATH_DISPATCH = domain.door('caller');
    nearpath = require('..');
    await domain.start('parts', { STREAM: '1' });
    await domain.start('whole');
    await domain.start('listens-orders');
    for (const name of ['parts', 'whole', 'listens-orders']) {
      for (let tries = 0; ; tries += 1) {
        try {
          await nearpath.call(name, '', near('/seen'));
          break;
        } catch (error) {
          if (error.kind !== 'unsent' || tries > 6000) throw error;
          await new Promise((resolve) => setTimeout(resolve, 5)); // there is no event for the start of another process
        }
      }
    }
  });
  after(async () => assert.deepEqual(await domain.stop(), [0, 0, 0]));

  test('each part is answered before the next is made', async () => {
    let answered;
    const says = async function* says() {
      for (const word of ['one', 'two', 'three']) {
        const heard = new Promise((resolve) => (answered = resolve));
        yield word;
        await heard;
      }
    };
    const answer = await nearpath.call('parts', says(), near('/shout', { stream: true }));
    const heard = [];
    for await (const part of answer.stream) {
      heard.push(String(part));
      answered();
    }
    assert.deepEqual([heard, answer.status, answer.path], [['ONE', 'TWO', 'THREE'], 200, 'shm']);
  });

  test('more than both sides may have unread', async () => {
    const answer = await nearpath.call('parts', repeat(100, Buffer.alloc(100_000, 'a')), near('/shout', { stream: true }));
    assert.equal(await length(answer.stream), 10_000_000);
  });

  test('what a handler reads, and a body that is put together', async () => {
    for (const name of ['parts', 'whole']) {
      const told = await nearpath.call(name, repeat(20, Buffer.alloc(100_000)), near('/count'));
      assert.equal(String(told.body), '2000000', name);
      const whole = await nearpath.call(name, 'plain', near('/shout'));
      assert.equal(String(whole.body), 'PLAIN', name);
    }
  });

  test('a slow reader stops the generator, and one that leaves ends it', async () => {
    const seen = async () => JSON.parse((await nearpath.call('whole', '', near('/seen'))).body);
    const [before, ended] = await seen();
    const answer = await nearpath.call('whole', '', near('/events', { stream: true }));
    assert.deepEqual([answer.status, answer.headers['content-type']], [207, 'text/event-stream']);
    for await (const part of answer.stream) {
      assert.equal(part.length, 60_000);
      for (let k = 0; k < 50; k += 1) assert.ok((await seen())[0] - before <= 16, 'eight parts are unread, few are about to go');
      break;
    }
    while ((await seen())[1] === ended); // the test has a deadline
  });

  test('what is broken off is an error and never an end', async () => {
    for (const name of ['parts', 'whole']) {
      const answer = await nearpath.call(name, '', near('/broken', { stream: true }));
      const error = await length(answer.stream).then(assert.fail, (raised) => raised);
      assert.deepEqual([error.kind, error.function, error.path], ['cut', name, 'shm']);
    }
    const breaks = async function* breaks() {
      yield 'some';
      throw new RangeError('no more');
    };
    await assert.rejects(nearpath.call('parts', breaks(), near('/count')), RangeError);
  });

  test('an event goes to who subscribes', async () => {
    assert.deepEqual(await nearpath.publish('orders', 'new'), { sent: 1, missed: 0 });
    assert.deepEqual(await nearpath.publish('others', 'new'), { sent: 0, missed: 0 });
    await nearpath.notify('listens-orders', 'plain', { nearOnly: true });
    const wanted = JSON.stringify([['orders', 'new'], [null, 'plain']]);
    while (String((await nearpath.call('listens-orders', '', near('/topics'))).body) !== wanted); // the test has a deadline
    const error = await nearpath.publish('orders/#').then(assert.fail, (raised) => raised);
    assert.equal(error.kind, 'name');
  });
});
