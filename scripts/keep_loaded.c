/* Preloaded in runs under the sanitizers: modules stay loaded, so that reports made at the end can name their functions. */
int dlclose(void *handle);
int dlclose(void *handle) { return (void)handle, 0; }
