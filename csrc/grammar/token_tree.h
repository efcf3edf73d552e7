/* A vocabulary as a tree of bytes in preorder. */
#ifndef ANE_GRAMMAR_TOKEN_TREE_H
#define ANE_GRAMMAR_TOKEN_TREE_H

#include "grammar/grammar.h"

enum { TOKEN_LONGEST = 1024 }; /* bytes; longer tokens are never allowed */

struct token_node {
  uint32_t skip;  /* the node behind the subtree */
  uint32_t token; /* + 1; 0: no token ends here */
  uint16_t depth; /* 1: the first byte */
  uint8_t byte;
};

struct ane_token_tree {
  struct token_node *nodes;
  uint32_t n_nodes;
  uint32_t n_tokens, words; /* words of a mask */
  uint32_t *twin;           /* [n_tokens] the next token of the same bytes + 1 */
  uint32_t longest;         /* bytes of the longest token */
};

#endif
