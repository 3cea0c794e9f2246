// SPDX-License-Identifier: Apache-2.0
#include "comm/testing_streams.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/cat.h"
#include "comm/host_memory.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

in_addr own_address() {
  in_addr found{htonl(INADDR_LOOPBACK)};
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    found = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    break;
  }
  ::freeifaddrs(all);
  return found;
}

// Throws where a call has failed.
int checked(int result, const char* call) {
  if (result < 0) throw Error(cat(call, ": ", std::strerror(errno)));
  return result;
}

sockaddr* any(sockaddr_in& address) {
  return reinterpret_cast<sockaddr*>(&address);
}

}  // namespace

TcpStreams::TcpStreams(int rank, const ProcessExchange& exchange) {
  const int listener = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in mine = {};
  mine.sin_family = AF_INET;
  mine.sin_addr = own_address();
  socklen_t length = sizeof mine;
  checked(::bind(listener, any(mine), length), "bind");
  checked(::listen(listener, 64), "listen");
  checked(::getsockname(listener, any(mine), &length), "getsockname");
  std::vector<sockaddr_in> all = exchange_values(exchange, mine);
  sockets_.assign(all.size(), -1);
  for (int32_t peer = 0; peer < rank; ++peer) {  // it listens already
    const int made = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    checked(::connect(made, any(all[peer]), sizeof all[peer]), "connect");
    const int32_t self = rank;
    checked(static_cast<int>(::send(made, &self, sizeof self, MSG_NOSIGNAL)), "send");
    sockets_[peer] = made;
  }
  for (size_t i = rank + 1; i < all.size(); ++i) {
    const int made = checked(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "accept");
    int32_t peer = 0;
    checked(static_cast<int>(::recv(made, &peer, sizeof peer, MSG_WAITALL)), "recv");
    sockets_.at(peer) = made;
  }
  ::close(listener);
  for (const int socket : sockets_) {
    const int on = 1;
    if (socket >= 0) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
}

TcpStreams::~TcpStreams() {
  for (const int socket : sockets_)
    if (socket >= 0) ::close(socket);
}

void TcpStreams::send(int rank, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(sockets_[rank], bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) throw Error(std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

void TcpStreams::receive(int rank, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t came = ::recv(sockets_[rank], bytes.data(), bytes.size(), 0);
    if (came < 0 && errno == EINTR) continue;
    if (came < 0) throw Error(std::strerror(errno));
    if (came == 0) throw Error("the peer has closed the connection");
    bytes = bytes.subspan(static_cast<size_t>(came));
  }
}

}  // namespace trimtab
