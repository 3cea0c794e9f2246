// SPDX-License-Identifier: Apache-2.0
// The typed errors of the library. Everything that a caller, a file or a peer can get wrong is
// thrown as one of these, with the offending values in the text; the library never prints, aborts
// or exits.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace trimtab {

// Root of all errors thrown by Trimtab.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller asked for something impossible: a shape, an id, a combination of options. Python:
// ValueError.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A file is not what it claims to be. The text names the file, the part (tensor, key, line) and the
// byte offset.
class FormatError : public Error {
 public:
  // offset: bytes from the start of the file, -1 when no place in the file is to blame.
  FormatError(std::string file, int64_t offset, const std::string& what)
      : Error(file + (offset >= 0 ? " at byte " + std::to_string(offset) : std::string()) + ": " +
              what),
        file_(std::move(file)),
        offset_(offset) {}

  const std::string& file() const { return file_; }
  int64_t offset() const { return offset_; }

 private:
  std::string file_;
  int64_t offset_;
};

// A peer is lost, late, or failed. Every rank of the group gets one, so that none waits for ever.
class CommError : public Error {
 public:
  // rank: who reports; peer: who is to blame (-1: nobody in particular); operation: what was waited
  // for.
  CommError(int rank, int peer, std::string operation, const std::string& what)
      : Error("rank " + std::to_string(rank) + ", " + operation +
              (peer >= 0 ? ", peer " + std::to_string(peer) : std::string()) + ": " + what),
        rank_(rank),
        peer_(peer),
        operation_(std::move(operation)) {}

  int rank() const { return rank_; }
  int peer() const { return peer_; }
  const std::string& operation() const { return operation_; }

 private:
  int rank_;
  int peer_;
  std::string operation_;
};

}  // namespace trimtab
