/* A test that passes, but loses a copy on its way. */
#include <stdlib.h>
#include <string.h>

static char *renamed(const char *name)
{
    char *copy = strdup(name);
    copy = strdup("leaky"); /* the first one is lost here */
    return copy;
}

int main(void)
{
    char *copy = renamed("old");
    int differs = strcmp(copy, "leaky");
    free(copy);
    return differs != 0;
}
