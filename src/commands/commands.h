/* commands -- one function a command of the executable, each in a file of its own name. They get the
 * arguments behind the command's name and return the exit code. Output that other programs read (--json) goes
 * to standard output alone. */
#ifndef COMMANDS_H
#define COMMANDS_H

int command_sweep(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_schedule(int argc, char **argv);
int command_bubble(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_import(int argc, char **argv);
int command_export(int argc, char **argv);
int command_dump(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_inspect(int argc, char **argv);
#endif
