// SPDX-License-Identifier: Apache-2.0
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import javax.tools.ToolProvider;

/** Loads one class after the other, each with functions of its own, and unloads it: code takes memory of older code. */
public class Generations {
    static final int FUNCTIONS = 40, DEPTH = 30;

    static String source(int generation) {
        StringBuilder text = new StringBuilder("public class G" + generation + " {\n");
        for (int number = 0; number < FUNCTIONS; number++) {
            text.append("static int f" + number + "x" + generation + "(int depth) throws Exception {\n");
            text.append("if (depth > 0) return f" + (number + 1) % FUNCTIONS + "x" + generation + "(depth - 1) + 1;\n");
            text.append("Thread.sleep(2); return 0; }\n");
        }
        return text + "public static int run() throws Exception { return f0x" + generation + "(" + DEPTH + "); } }\n";
    }

    public static void main(String[] arguments) throws Exception {
        int number = Integer.parseInt(arguments[0]);
        long length = Long.parseLong(arguments[1]) * 1_000_000;
        Path place = Path.of(arguments[2]);
        List<String> files = new ArrayList<>(List.of("-proc:none", "-d", place.toString()));
        for (int generation = 0; generation < number; generation++) {
            files.add(Files.writeString(place.resolve("G" + generation + ".java"), source(generation)).toString());
        }
        ToolProvider.getSystemJavaCompiler().run(null, null, null, files.toArray(String[]::new));
        for (int generation = 0; generation < number; generation++) {
            try (URLClassLoader loader = new URLClassLoader(new URL[] {place.toUri().toURL()})) {
                var run = loader.loadClass("G" + generation).getMethod("run");
                long begin = System.nanoTime();
                while (System.nanoTime() < begin + length) {
                    run.invoke(null);
                }
                System.out.println(begin + " " + System.nanoTime() + " " + generation);
            }
            for (int collections = 0; collections < 3; collections++) {
                System.gc();
                Thread.sleep(20);
            }
        }
    }
}
