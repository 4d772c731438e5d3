'use strict';
// Returns its name and the path of its call to the function in NEXT.

const nearpath = require('nearpath');

nearpath.serve(async ({ body }) => {
  const next = process.env.NEXT;
  if (!next) return 'node';
  const response = await nearpath.call(next, body);
  return `node -${response.path}-> ${response.body}`;
});
