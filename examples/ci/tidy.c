/* A test that passes and frees what it has allocated. */
#include <stdlib.h>
#include <string.h>

int main(void)
{
    char *copy = strdup("tidy");
    int differs = strcmp(copy, "tidy");
    free(copy);
    return differs != 0;
}
