import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Collection;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.common.configuration.FieldContext;

/** Prints all keys of broker.conf with their defaults, as the reference broker has them. */
public class PulsarConfiguration {
    public static void main(String[] arguments) throws Exception {
        ServiceConfiguration configuration = new ServiceConfiguration();
        for (Field field : ServiceConfiguration.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) || !field.isAnnotationPresent(FieldContext.class)) {
                continue;
            }
            field.setAccessible(true);
            Object value = field.get(configuration);
            if (value instanceof Optional<?> optional) {
                value = optional.orElse(null);
            }
            if (value instanceof Collection<?> items) {
                value = items.stream().map(Object::toString).collect(Collectors.joining(","));
            }
            System.out.println(field.getName() + "=" + (value == null ? "" : value));
        }
    }
}
