'use strict';
// Says its name, and how it reached the function that NEXT names.

const nearpath = require('nearpath');

nearpath.serve(async ({ body }) => {
  const next = process.env.NEXT;
  if (!next) return 'node';
  const answer = await nearpath.call(next, body);
  return `node -${answer.path}-> ${answer.body}`;
});
