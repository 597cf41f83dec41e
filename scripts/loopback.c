/* loopback -- a library for LD_PRELOAD: sockets listen on the loopback, whatever address they would take.
 * scripts/launch puts it before mpirun on one host, whose own settings cannot say so: Open MPI 4 listens on
 * all addresses, 5 on one of a network. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    static int (*system_bind)(int, const struct sockaddr *, socklen_t);
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (!system_bind)
        system_bind = dlsym(RTLD_NEXT, "bind");
    if (address->sa_family == AF_INET && bytes == sizeof v4) {
        memcpy(&v4, address, sizeof v4);
        v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return system_bind(fd, (struct sockaddr *)&v4, sizeof v4);
    }
    if (address->sa_family == AF_INET6 && bytes == sizeof v6) {
        memcpy(&v6, address, sizeof v6);
        v6.sin6_addr = in6addr_loopback;
        return system_bind(fd, (struct sockaddr *)&v6, sizeof v6);
    }
    return system_bind(fd, address, bytes);
}
