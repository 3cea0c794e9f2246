// SPDX-License-Identifier: Apache-2.0
// The options of a command. CLI11 takes ten seconds to compile, so it stands in command.cc alone.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trimtab::cli {

// Wrong usage: the command line asks for something that no file or machine could make right. The
// exit status is 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One option or argument, while a command is described.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  // The help calls the value so; an empty name leaves it out.
  Option& type(const std::string& name);
  Option& required();
  // The help shows the value that the variable has now.
  Option& shows_default();
  // The checks below are made while the command line is read; a failure is wrong usage.
  Option& between(int64_t least, int64_t most);
  Option& between_reals(double least, double most);
  Option& at_least(int64_t least) { return between(least, std::numeric_limits<int64_t>::max()); }
  Option& one_of(std::vector<std::string> names);
  // check returns what is wrong with the text, or nothing.
  Option& checked(std::function<std::string(const std::string&)> check);
  // As checked(), where `parse` throws InvalidArgument or UsageError for a wrong text.
  Option& parsed_by(std::function<void(const std::string&)> parse);
  Option& needs(const Option& other);
  Option& excludes(const Option& other);

 private:
  CLI::Option* option_;
};

// A command or a subcommand. The variables must outlive the parsing. Names are "--long",
// "-s,--long" or, for an argument, "NAME".
class Command {
 public:
  // chosen: gets the body of the command that the command line names.
  Command(CLI::App& app, std::function<void()>& chosen) : app_(&app), chosen_(&chosen) {}

  Command add(const std::string& name, const std::string& about);
  // Sets the text below the options in the help.
  void footer(const std::string& text);
  // Sets what the command does once the command line has been read, unless it names a subcommand.
  // The body may throw UsageError and Error.
  void runs(std::function<void()> body);

  // Text that may not be empty: an empty variable of a script must not silently mean the default.
  Option text(const std::string& name, std::string& value, const std::string& about);
  Option number(const std::string& name, int& value, const std::string& about);
  Option number(const std::string& name, int64_t& value, const std::string& about);
  Option number(const std::string& name, uint64_t& value, const std::string& about);
  Option number(const std::string& name, float& value, const std::string& about);
  Option number(const std::string& name, double& value, const std::string& about);
  Option number(const std::string& name, std::optional<double>& value, const std::string& about);
  Option flag(const std::string& name, bool& value, const std::string& about);
  // Sets the value to false.
  Option negative_flag(const std::string& name, bool& value, const std::string& about);
  // Several values, blanks between.
  Option texts(const std::string& name, std::vector<std::string>& values, const std::string& about);
  // One value each time that it is given.
  Option repeated(const std::string& name, std::vector<std::string>& values,
                  const std::string& about);
  // One value, with commas between its parts.
  Option list(const std::string& name, std::vector<std::string>& values, const std::string& about);
  Option list(const std::string& name, std::vector<int64_t>& values, const std::string& about);

  // Was the option on the command line?
  bool given(const std::string& name) const;

 private:
  CLI::App* app_;
  std::function<void()>* chosen_;
};

// What a command line asks for.
struct CommandLine {
  std::string command;               // the command that it names; empty: none
  std::function<void()> body;        // what that command does; empty: nothing is left to do
  std::string help;                  // what was asked for instead of a command: help or the version
  std::string wrong;                 // why the command line can't be read; empty: it can
  std::shared_ptr<CLI::App> parsed;  // for Command::given() in the body
};

// Reads the command line of a program. describe adds the commands.
CommandLine read_command_line(int argc, const char* const* argv, const std::string& about,
                              const std::string& version,
                              const std::function<void(Command&)>& describe);

}  // namespace trimtab::cli
