// The two answers of the mock engine: the mock sends them, the load generator compares every byte.
#ifndef ANSWERS_H
#define ANSWERS_H

#include <stddef.h>
#include <stdio.h>

#define EVENT_MAX 400  // upper bound of one event's size

static const char WHOLE_ANSWER[] =
    "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1700000000,"
    "\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
    "\"content\":\"Hello there, friend\"},\"finish_reason\":\"stop\"}]}";

// Event i of n of a streamed answer; the last one is [DONE].
static inline size_t event_text(char *to, int i, int n) {
    if (i == n - 1) return (size_t)sprintf(to, "data: [DONE]\n\n");
    return (size_t)sprintf(
        to,
        "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","
        "\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
        "\" tok%06d\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        i);
}

#endif
